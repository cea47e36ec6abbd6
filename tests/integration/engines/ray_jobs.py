"""Two Ray actors share the software GPU: a best-effort one beside a protected one. Run by ray.sh, with Tessera in PATH and
a tesserad that listens. Exit 0, or 1 with what is wrong."""
import ctypes
import json
import subprocess
import sys
import time

import ray
import tessera_ray

PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry work(.param .u64 out, .param .u32 rounds)
{
  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<3>;
  ld.param.u64 %d1, [out]; ld.param.u32 %r5, [rounds];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
  mov.u32 %r4, %r1;
LOOP: mad.lo.u32 %r4, %r4, 1664525, 1013904223; sub.u32 %r5, %r5, 1; setp.ne.u32 %p, %r5, 0; @%p bra LOOP;
  mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r4;
  ret;
}
"""
BLOCKS, THREADS = 256, 128


class Job:
    """Uses the driver as any program does; knows nothing of Tessera."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.function, self.out = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"work")
        self.call("cuMemAlloc_v2", ctypes.byref(self.out), BLOCKS * THREADS * 4)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} answers {result}")

    def step(self, rounds):
        """Sum of what the kernel wrote."""
        rounds = ctypes.c_uint32(rounds)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(self.out), ctypes.addressof(rounds))
        self.call("cuLaunchKernel", self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, values, None)
        host = (ctypes.c_uint32 * (BLOCKS * THREADS))()
        self.call("cuMemcpyDtoH_v2", host, self.out, ctypes.sizeof(host))
        return sum(host)

    def ready(self):
        return True


def clients():
    text = subprocess.run(["tessera", "ps", "--json"], capture_output=True, text=True, check=True).stdout
    return {client["name"]: client for client in json.loads(text)["clients"]}


def until(true, what):
    for _ in range(1200):
        if true():
            return
        time.sleep(0.1)
    sys.exit(f"ray: {what}: {clients()}")


def main():
    ray.init(num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False, resources=tessera_ray.node_resources(1))
    remote, soft = ray.remote(Job), ["--gpu", "soft"]
    alone = ray.get(remote.options(num_cpus=1, **tessera_ray.options(name="alone", gpu=1, run=soft)).remote().step.remote(3000))
    until(lambda: not clients(), "an actor that ended is still a client")
    service = remote.options(num_cpus=1, **tessera_ray.options("high", slo_ms=20, name="service", run=soft, by_level=True)).remote()
    trainer = remote.options(num_cpus=1, **tessera_ray.options(weight=300, name="trainer", run=soft, by_level=True)).remote()
    ray.get([service.ready.remote(), trainer.ready.remote()])
    until(lambda: set(clients()) == {"service", "trainer"}, "the actors are not clients")
    seen = clients()
    if (seen["service"]["priority"], seen["trainer"]["priority"], seen["trainer"]["weight"]) != (5, 0, 300):
        sys.exit(f"ray: priorities or weight are wrong: {seen}")
    working = [trainer.step.remote(3000) for _ in range(6)]
    for _ in range(30):
        ray.get(service.step.remote(50))
    if set(ray.get(working)) != {alone}:
        sys.exit("ray: results differ from those of the actor alone")
    if clients()["trainer"]["slices"] == 0:
        sys.exit(f"ray: nothing was cut: {clients()}")
    ray.kill(trainer)
    until(lambda: set(clients()) == {"service"}, "the killed actor is still a client")
    print("ray: ok,", ray.__version__)


if __name__ == "__main__":
    main()
