"""Kernels that torch.compile makes of models, without a GPU: their Triton sources, then PTX of each and how long it would run.

usage: python inductor_kernels.py sources FOLDER [MODEL...]     on the software GPU, which executes nothing here
       python inductor_kernels.py ptx SOURCES FOLDER ARCHITECTURE...     (80, 90, 100 or 120)

Weights are random and few layers stand for many: equal layers have equal kernels. Training, bfloat16 by autocast."""
import importlib.util
import json
import pathlib
import re
import sys
import traceback

KEPT = 10  # kernels of a model, the longest first; of those that differ in numbers only, one
MOVED_BYTES_PER_US = 3.35e6  # of an H100
IMAGES = {"resnet50": 64, "mobilenet_v3_large": 64, "convnext_tiny": 64, "swin_t": 64}


def vision(name):
    import torch
    import torchvision

    model, images = getattr(torchvision.models, name)(), IMAGES[name]
    return model, (torch.randn(images, 3, 224, 224),), torch.randint(0, 1000, (images,))


def language(make, config, batch=8, length=1024, **sizes):
    import torch
    import transformers

    settings = getattr(transformers, config)(**sizes)
    model = getattr(transformers, make)(settings)
    model.config.use_cache = False
    tokens = torch.randint(0, 1000, (batch, length))
    return model, {"input_ids": tokens, "labels": tokens}, None


def attention():
    """A score that is changed, which torch.compile makes one kernel of."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    class Biased(torch.nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (j - i) * 0.1)

    return Biased(), tuple(torch.randn(4, 16, 4096, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)), None


SMALL = {"num_hidden_layers": 2}
MODELS = {name: lambda name=name: vision(name) for name in IMAGES} | {
    "gpt2": lambda: language("GPT2LMHeadModel", "GPT2Config", n_layer=2),
    "llama": lambda: language("LlamaForCausalLM", "LlamaConfig", hidden_size=2048, intermediate_size=5632, **SMALL),
    "qwen3": lambda: language("Qwen3ForCausalLM", "Qwen3Config", hidden_size=1024, intermediate_size=3072, **SMALL),
    "bert": lambda: language("BertForMaskedLM", "BertConfig", batch=32, length=512, **SMALL),
    "t5": lambda: language("T5ForConditionalGeneration", "T5Config", length=512, num_layers=2),
    "flex_attention": attention,
    "adam": None,
}


class Captured(Exception):
    """Raised where a kernel would run."""


def capture():
    """From now on what torch.compile hands to Triton is kept instead: name, source."""
    import torch._functorch.config
    import torch._inductor.async_compile
    import torch._inductor.config as settings

    class Kernel:
        def run(self, *_args, **_more):
            raise Captured

    kept = []

    def keep(_self, name, source, device_str="cuda"):
        kept.append((name, source))
        return Kernel()

    torch._inductor.async_compile.AsyncCompile.triton = keep
    settings.compile_threads, settings.fx_graph_cache, settings.profile_bandwidth = 1, False, True
    settings.joint_graph_constant_folding = settings.shape_padding = False  # they would run kernels
    torch._functorch.config.enable_autograd_cache = False
    torch._functorch.config.force_non_lazy_backward_lowering = True
    return kept


def compile_model(name):
    import torch

    on_gpu = lambda x: x.cuda() if isinstance(x, torch.Tensor) else x
    if name == "adam":
        parameters = [torch.randn(size).cuda().requires_grad_() for size in ((4096, 4096), (4096,), (11008, 4096))]
        for p in parameters:
            p.grad = p.detach()
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        for p in parameters:
            optimizer.state[p] = {"step": torch.tensor(1.0)} | {k: torch.zeros(p.shape).cuda() for k in ("exp_avg", "exp_avg_sq")}
        torch.compile(optimizer.step)()
        return
    model, given, target = MODELS[name]()
    model = model.cuda().train()
    named = {k: on_gpu(v) for k, v in given.items()} if isinstance(given, dict) else {}
    given = () if named else tuple(on_gpu(v).detach().requires_grad_(v.requires_grad) for v in given)

    def step(*args, **more):
        out = model(*args, **more)
        return torch.nn.functional.cross_entropy(out, on_gpu(target)) if target is not None else getattr(out, "loss", out)

    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=name != "flex_attention"):
        torch.compile(step)(*given, **named)


def write_sources(folder, names):
    import torch

    kept = capture()
    for name in names or MODELS:
        kept.clear()
        torch._dynamo.reset()
        try:
            compile_model(name)
        except Captured:
            pass
        except Exception as why:  # what the software GPU lacks comes after the kernels were made
            print(f"{name}: " + "".join(traceback.format_exception(why, limit=-1)).strip())
        kinds = {}
        for kernel, source in kept:
            moved_gb = re.search(r"'kernel_num_gb': ([0-9.e+-]+)", source)
            us = float(moved_gb[1]) * 1e9 / MOVED_BYTES_PER_US if moved_gb else 0
            kind = re.sub(r"_\d+\b", "", kernel)
            if kind not in kinds or us > kinds[kind][0]:
                kinds[kind] = us, kernel, source
        longest = sorted(kinds.values(), reverse=True)[:KEPT]
        print(f"{name}: {len(kept)} kernels, {len(kinds)} kinds, {len(longest)} of them kept", flush=True)
        for number, (us, _, source) in enumerate(longest):
            (folder / f"{name}_{number}.py").write_text(source)
            (folder / f"{name}_{number}.json").write_text(json.dumps({"us": us}))


def kernel_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(v for v in vars(module).values() if hasattr(v, "triton_meta") and hasattr(v, "configs"))


def write_ptx(sources, folder, architectures):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for path in sorted(sources.glob("*.py")):
        us = json.loads(path.with_suffix(".json").read_text())["us"]
        kernel = kernel_of(path)
        meta, config = kernel.triton_meta, kernel.configs[0]  # without autotuning it is the only one, or the first of them
        constants = dict(meta.get("constants", {})) | config.kwargs
        attributes = meta["configs"][0]
        for sm in architectures:
            out = folder / f"inductor.{path.stem}.sm_{sm}.ptx"
            if out.exists():
                continue
            try:
                made = triton.compile(ASTSource(fn=kernel.fn, signature=meta["signature"], constexprs=constants, attrs=attributes),
                                      target=GPUTarget("cuda", sm, 32),
                                      options={"num_warps": config.num_warps, "num_stages": config.num_stages})
            except Exception as why:  # a compiler's refusal is told and left out
                print(f"{path.stem} for sm_{sm}: not compiled: {str(why).splitlines()[0] if str(why) else why!r}")
                continue
            out.write_text(made.asm["ptx"])
            out.with_suffix(".us").write_text(f"{us:.0f}")


def main():
    if sys.argv[1] == "sources":
        write_sources(pathlib.Path(sys.argv[2]), sys.argv[3:])
    else:
        write_ptx(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), [int(sm) for sm in sys.argv[4:]])


if __name__ == "__main__":
    main()
