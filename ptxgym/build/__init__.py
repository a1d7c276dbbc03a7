"""Submission to Build: nvcc in a sandbox, its products by content, its messages by line."""
