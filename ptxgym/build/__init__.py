"""Submission to Build: nvcc in a sandbox, its products by content, its messages by line."""

from ptxgym.build.model import Build, KernelResources
from ptxgym.build.pipeline import build, build_key
from ptxgym.build.sass import disassemble
from ptxgym.build.toolchain import Toolchain, find_toolchain

__all__ = ["Build", "KernelResources", "Toolchain", "build", "build_key", "disassemble", "find_toolchain"]
