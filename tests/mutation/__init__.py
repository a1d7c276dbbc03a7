"""Mutation of correct kernels: does the emulator notice every dropped wait, and does it name the right line?"""
