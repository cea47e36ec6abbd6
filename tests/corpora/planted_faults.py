"""Faults of arithmetic that are planted into the PTX of cut variants, one of a kind in each kernel: the proof must find them."""
import re

# How a line is spoilt: kind, pattern, replacements of which the first one that changes the line is taken.
F32 = r"(add|sub|mul|fma)"
ROWS = [
    ("a changed modifier", r"(ex2|lg2|sin|cos|rcp|rsqrt|sqrt|tanh)\.approx\.ftz\.f32 (.*)", r"\1.approx.f32 \2"),
    ("a changed modifier", r"(ex2|lg2|sin|cos|rcp|rsqrt|sqrt)\.approx\.f32 (.*)", r"\1.approx.ftz.f32 \2"),
    ("a changed modifier", F32 + r"(?:\.rn)?((?:\.ftz)?\.f32 .*)", r"\1.rz\2"),
    ("a changed modifier", r"cvt\.rn\.(bf16x2|f16x2|f16|bf16)\.f32 (.*)", r"cvt.rz.\1.f32 \2"),
    ("a fused product", r"fma\.rn((?:\.ftz)?\.f32) (%\w+), (.*), (.*), (.*);",
     r"{ .reg .f32 %planted; mul.rn\1 %planted, \3, \4; add.rn\1 \2, %planted, \5; }"),
    ("a fused product", r"mul(?:\.rn)?((?:\.ftz)?\.f32) (%\w+), (.*), (.*);", r"fma.rn\1 \2, \3, \4, \3;"),
    ("a fused product", r"add(?:\.rn)?((?:\.ftz)?\.f32) (%\w+), (.*), (.*);", r"fma.rn\1 \2, \3, \4, \4;"),
    ("swapped operands", r"((?:sub|div)[.\w]*\.(?:f32|f64|f16x2|bf16x2)) (%\w+), (.*), (.*);", r"\1 \2, \4, \3;"),
    ("swapped operands", r"(fma[.\w]*) (%\w+), (.*), (.*), (.*);", r"\1 \2, \3, \5, \4;"),
    ("swapped operands", r"(cvt[.\w]*x2\.f32) (%\w+), (.*), (.*);", r"\1 \2, \4, \3;"),
    ("swapped operands", r"(setp\.[lg][te][.\w]*\.f32) (%\w+), (.*), (.*);", r"\1 \2, \4, \3;"),
    ("a dropped conversion", r"cvt[.\w]*x2\.f32 (%\w+), (.*), (.*);", r"mov.b32 \1, \2;"),
    ("a dropped conversion", r"cvt\.f32\.(?:f16|bf16) (%\w+), (.*);", r"mov.b32 \1, {\2, \2};"),
    ("a dropped conversion", r"cvt[.\w]*\.(?:f16|bf16)\.f32 (%\w+), (.*);", r"{ .reg .b16 %planted; mov.b32 {%planted, \1}, \2; }"),
    ("a dropped conversion", r"cvt[.\w]*\.(?:f32\.[su]32|[su]32\.f32) (%\w+), (.*);", r"mov.b32 \1, \2;"),
    ("a dropped conversion", r"cvt\.f64\.f32 (%\w+), (.*);", r"mov.b64 \1, {\2, \2};"),
]
KINDS = list(dict.fromkeys(kind for kind, _, _ in ROWS))


def sites(text, kind):
    """By variant: the lines that can be spoilt, each as its place in the text, its end and what stands there instead."""
    for body in re.finditer(r"\.entry (\w+__tessera_slice)\(.*?\n}", text, re.S):
        found = []
        for line in re.finditer(r"^[ \t]*([a-z].*;)[ \t]*$", body[0], re.M):
            for row_kind, pattern, instead in ROWS:
                if row_kind != kind or not (match := re.fullmatch(pattern, line[1])):
                    continue
                spoilt = match.expand(instead)
                if spoilt != line[1]:
                    found.append((body.start() + line.start(1), body.start() + line.end(1), spoilt))
                    break
        if found:
            yield body[1], found


def planted(text, kind, random):
    """The text with one fault of this kind in each variant that has a place for it."""
    chosen = [random.choice(found) for _, found in sites(text, kind)]
    for begin, end, spoilt in sorted(chosen, reverse=True):
        text = text[:begin] + spoilt + text[end:]
    return text if chosen else None
