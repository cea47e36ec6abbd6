"""Triton's kernels as its own launcher loads them: machine code, beside which `tessera run --keep-ptx` kept the PTX."""
import client

triton = client.load("triton")
triton.Kernel.image = "cubin"
VERSION, work = triton.VERSION, triton.work
