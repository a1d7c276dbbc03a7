"""The CUDA device: a judge process per GPU, an executor process per submission, times, profiles and sanitizers."""
