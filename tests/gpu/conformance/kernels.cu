// Micro-kernels that show what a Hopper GPU does, one mechanism each.
//
// tests/gpu/cases makes the jobs and reads the results; runner.cpp runs them on a GPU, the emulator runs the same kernels
// from this file's PTX. Kernels of one instruction each need no file: tests/gpu/cases/ptx.py writes their PTX.
#include "cluster.cuh"
#include "copies.cuh"
#include "forms.cuh"
#include "mbarrier.cuh"
#include "warp.cuh"
#include "wgmma.cuh"
