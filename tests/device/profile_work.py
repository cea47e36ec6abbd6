#!/usr/bin/env python3
"""Work to be profiled (H13): a copy kernel, cuBLAS products, training steps of ResNet-50 and GPT-2 in eager PyTorch.
Prints one JSON object with steps_per_s; exit status 77: what it needs is not installed."""
import argparse
import ctypes
import json
import sys
import time

COPY = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry copy_words(.param .u64 from, .param .u64 to, .param .u32 n) {
  .reg .pred %p;
  .reg .u32 %i, %n, %step, %t, %v<4>;
  .reg .u64 %a, %b, %at;
  ld.param.u64 %a, [from];
  ld.param.u64 %b, [to];
  ld.param.u32 %n, [n];
  mov.u32 %step, %ntid.x;
  mov.u32 %i, %ctaid.x;
  mov.u32 %t, %tid.x;
  mad.lo.u32 %i, %i, %step, %t;
  mov.u32 %t, %nctaid.x;
  mul.lo.u32 %step, %step, %t;
again:
  setp.ge.u32 %p, %i, %n;
  @%p ret;
  mul.wide.u32 %at, %i, 16;
  add.u64 %at, %at, %a;
  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%at];
  sub.u64 %at, %at, %a;
  add.u64 %at, %at, %b;
  st.global.v4.u32 [%at], {%v0, %v1, %v2, %v3};
  add.u32 %i, %i, %step;
  bra again;
}
"""


def missing(what):
    print(f"skipped: {what} is not installed", file=sys.stderr)
    sys.exit(77)


def check(status):
    if status != 0:
        sys.exit(f"the driver or library returned {status}")


class Driver:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        check(self.cuda.cuInit(0))
        check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(self.cuda.cuCtxSetCurrent(context))

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        check(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        check(self.cuda.cuMemsetD32_v2(pointer, 0, ctypes.c_size_t(size // 4)))
        return pointer

    def synchronize(self):
        check(self.cuda.cuCtxSynchronize())


def copy(size):
    driver = Driver()
    a, b = driver.allocate(size), driver.allocate(size)
    module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32(size // 16)
    check(driver.cuda.cuModuleLoadData(ctypes.byref(module), COPY))
    check(driver.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"copy_words"))
    arguments = (ctypes.c_void_p * 3)(*(ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in (a, b, count)))

    def step():
        check(driver.cuda.cuLaunchKernel(function, 1024, 1, 1, 256, 1, 1, 0, None, arguments, None))
        check(driver.cuda.cuMemcpyDtoDAsync_v2(b, a, ctypes.c_size_t(size), None))

    return step, driver.synchronize


def gemm(n):
    driver = Driver()
    for name in ("libcublas.so.13", "libcublas.so.12", "libcublas.so"):
        try:
            cublas = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        missing("cuBLAS")
    a, b, c = (driver.allocate(n * n * 4) for _ in range(3))
    handle, one, zero = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)
    check(cublas.cublasCreate_v2(ctypes.byref(handle)))
    fp16, fp32, compute_32f, default = 2, 0, 68, -1  # CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT

    def product(kind):
        check(cublas.cublasGemmEx(handle, 0, 0, n, n, n, ctypes.byref(one), a, kind, n, b, kind, n, ctypes.byref(zero), c,
                                  kind, n, compute_32f, default))

    def step():
        product(fp32)
        product(fp16)

    return step, driver.synchronize


def torch_or_skip():
    try:
        import torch
    except ImportError:
        missing("PyTorch")
    if not torch.cuda.is_available():
        missing("PyTorch with a GPU")
    torch.manual_seed(1)
    return torch


def resnet50(batch):
    torch = torch_or_skip()
    nn = torch.nn

    def convolution(cin, cout, size, stride=1):
        return nn.Sequential(nn.Conv2d(cin, cout, size, stride, size // 2, bias=False), nn.BatchNorm2d(cout))

    class Block(nn.Module):
        def __init__(self, cin, width, stride):
            super().__init__()
            self.path = nn.Sequential(convolution(cin, width, 1), nn.ReLU(), convolution(width, width, 3, stride), nn.ReLU(),
                                      convolution(width, 4 * width, 1))
            self.short = nn.Identity() if cin == 4 * width else convolution(cin, 4 * width, 1, stride)

        def forward(self, x):
            return torch.relu(self.path(x) + self.short(x))

    layers, cin = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, n, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(n):
            layers.append(Block(cin, width, stride if i == 0 else 1))
            cin = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return training(torch, model, images, lambda out: nn.functional.cross_entropy(out, labels))


def gpt2(batch):
    """GPT-2 small: 12 layers of 768, 512 tokens, operator by operator: hundreds of short kernels per step."""
    torch = torch_or_skip()
    nn, width, heads, tokens, words = torch.nn, 768, 12, 512, 50257

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            q, k, v = (t.view(batch, tokens, heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, 2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.mlp(self.after(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.blocks, self.last = nn.Sequential(*(Block() for _ in range(12))), nn.LayerNorm(width)

        def forward(self, x):
            x = self.word(x) + self.place(torch.arange(tokens, device="cuda"))
            return self.last(self.blocks(x)) @ self.word.weight.T

    text = torch.randint(0, words, (batch, tokens), device="cuda")
    return training(torch, Model().cuda(), text, lambda out: nn.functional.cross_entropy(out.view(-1, words), text.view(-1)))


def training(torch, model, data, loss_of):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step():
        optimiser.zero_grad()
        loss_of(model(data)).backward()
        optimiser.step()

    return step, torch.cuda.synchronize


WORK = {  # what, its size, its size for a rehearsal, steps
    "copy": (copy, 1 << 28, 1 << 18, 50), "gemm": (gemm, 4096, 64, 50),
    "resnet50": (resnet50, 32, 1, 20), "gpt2": (gpt2, 4, 1, 20)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--steps", type=int, help="default: 50 of copy and gemm, 20 of the others")
    parser.add_argument("--small", action="store_true", help="as little as possible, for rehearsals")
    args = parser.parse_args()
    make, size, small, steps = WORK[args.work]
    steps = args.steps or steps
    step, synchronize = make(small if args.small else size)
    for _ in range(3):
        step()
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    print(json.dumps({"work": args.work, "steps": steps, "steps_per_s": steps / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main()
