"""Episodes for trainers: one file per library, each imported only where that library is.

Every adapter plays `Rollout`s: an answer with a fenced kernel file in, feedback and a reward out. Where the machine
fails, evaluations are repeated; where it keeps failing, the rollout has no reward, and each trainer is told so in its
own way: `None`, an error that it may retry, a mask. It is never 0, which would teach that the kernel was bad.
"""
