"""Triton kernels of the decode path; imported only where a GPU runs them."""
