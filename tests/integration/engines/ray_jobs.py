"""Ray's actors, tasks and Serve replicas share the software GPU: best-effort ones beside protected ones. Run by ray.sh, with
Tessera in PATH and a tesserad that listens. Exit 0, or 1 with what is wrong."""
import ctypes
import json
import subprocess
import sys
import time

import ray
import tessera_ray
from ray import serve

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
LONG, SHORT = 3000, 50  # rounds of a best-effort and of a protected step
PATIENCE_S = 120


class Job:
    """Uses the driver as any program does; knows nothing of Tessera."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, module, self.context = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.function, self.out = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"work")
        self.call("cuMemAlloc_v2", ctypes.byref(self.out), BLOCKS * THREADS * 4)

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} answers {result}")

    def step(self, rounds):
        """Sum of what the kernel wrote."""
        self.call("cuCtxSetCurrent", self.context)  # Serve calls in threads of its own
        rounds = ctypes.c_uint32(rounds)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(self.out), ctypes.addressof(rounds))
        self.call("cuLaunchKernel", self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, values, None)
        host = (ctypes.c_uint32 * (BLOCKS * THREADS))()
        self.call("cuMemcpyDtoH_v2", host, self.out, ctypes.sizeof(host))
        return sum(host)

    def ready(self):
        return True


def task(rounds):
    """A job that ends."""
    return Job().step(rounds)


@serve.deployment
class Replica(Job):
    def __call__(self, rounds):
        return self.step(rounds)


def clients():
    text = subprocess.run(["tessera", "ps", "--json"], capture_output=True, text=True, check=True).stdout
    return {client["name"]: client for client in json.loads(text)["clients"]}


def until(true, what):
    for _ in range(1200):
        if true():
            return
        time.sleep(0.1)
    sys.exit(f"ray: {what}: {clients()}")


def check(condition, what):
    if not condition:
        sys.exit(f"ray: {what}: {clients()}")


def get(what):
    """Ends also where Ray cannot place the job: the shares of a GPU that actors hold stay taken while they live."""
    return ray.get(what, timeout=PATIENCE_S)


def shared(*request, **more):
    return {"num_cpus": 1, **tessera_ray.options(*request, run=["--gpu", "soft"], **more)}


def alone():
    """The sums of a job that has the GPU to itself: (long, short)."""
    job = ray.remote(Job).options(**shared(name="alone", gpu=1)).remote()
    return get([job.step.remote(LONG), job.step.remote(SHORT)])


def protected(service):
    """Best-effort launches were cut and waited for the service, whose own never waited."""
    seen = clients()
    waited = [name for name, client in seen.items() if client["priority"] == 0 and client["holds"] and client["slices"]]
    return waited and seen[service]["holds"] == 0


def actors(expected):
    """A protected actor beside a best-effort one, and a task beside both."""
    service = ray.remote(Job).options(**shared("high", slo_ms=20, name="service", gpu=0.4, by_level=True)).remote()
    trainer = ray.remote(Job).options(**shared(weight=300, name="trainer", gpu=0.4, by_level=True)).remote()
    get([service.ready.remote(), trainer.ready.remote()])
    until(lambda: set(clients()) == {"service", "trainer"}, "the actors are not clients")
    seen = clients()
    check((seen["service"]["priority"], seen["trainer"]["priority"], seen["trainer"]["weight"]) == (5, 0, 300),
          "priorities or weight are wrong")
    check(seen["service"]["slo_ns"] == 20_000_000, "the service's objective is wrong")
    working = [trainer.step.remote(LONG) for _ in range(6)]
    working.append(ray.remote(**shared(name="task", gpu=0.2, by_level=True))(task).remote(LONG))
    answers = [get(service.step.remote(SHORT)) for _ in range(30)]
    check(set(get(working)) == {expected[0]} and set(answers) == {expected[1]}, "results differ from those of a job alone")
    check(protected("service"), "nothing waited for the service")
    until(lambda: set(clients()) == {"service", "trainer"}, "the worker of the task that ended is still a client")
    ray.kill(trainer)
    until(lambda: set(clients()) == {"service"}, "the killed actor is still a client")
    ray.kill(service)
    until(lambda: not clients(), "the killed service is still a client")


def replicas(expected):
    """A protected replica of Serve beside a best-effort actor."""
    serve.start(proxy_location="Disabled")
    handle = serve.run(Replica.options(ray_actor_options=shared("high", slo_ms=20, name="replica", gpu=0.5)).bind())
    trainer = ray.remote(Job).options(**shared(name="trainer", gpu=0.5)).remote()
    working = [trainer.step.remote(LONG) for _ in range(6)]
    answers = [handle.remote(SHORT).result(timeout_s=PATIENCE_S) for _ in range(30)]
    check(set(get(working)) == {expected[0]} and set(answers) == {expected[1]}, "results differ beside a replica of Serve")
    check(clients()["replica"]["priority"] == 5 and protected("replica"), "the replica is not protected")
    serve.shutdown()
    ray.kill(trainer)
    until(lambda: not clients(), "the replica or the actor is still a client")


def bad_requests():
    for request, remedy in (({"priority": "fast"}, "best-effort"), ({"slo_ms": 20}, "priority='high'")):
        try:
            tessera_ray.options(**request)
        except ValueError as why:
            check(remedy in str(why), f"{request} is refused without a remedy: {why}")
        else:
            sys.exit(f"ray: {request} is accepted")


def main():
    bad_requests()
    ray.init(num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False, resources=tessera_ray.node_resources(1))
    expected = alone()
    until(lambda: not clients(), "an actor that ended is still a client")
    actors(expected)
    replicas(expected)
    print("ray: ok,", ray.__version__)


if __name__ == "__main__":
    main()
