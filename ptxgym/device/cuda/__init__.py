"""The CUDA device: a judge process per GPU, an executor per submission, times, profiles and sanitizers."""
