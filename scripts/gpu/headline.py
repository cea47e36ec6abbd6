#!/usr/bin/env python3
"""The headline on one GPU: a stock service beside a stock trainer, under each system of sharing, in phases of a few seconds.

One line per answer as soon as it is there; OUT/headline.json is rewritten after each, so that whoever ends this program keeps
what was answered. An answer is `ok` if both programs answered, the results are those without Tessera, and, where Tessera takes
part, the daemon lives, both are its clients, and a gate on the device was in use. Nothing starts that cannot end within the
budget, and on every way out all that was started is ended, by its process id."""
import argparse
import collections
import contextlib
import json
import pathlib
import shutil
import sys
import tempfile
import time

import processes
from processes import Daemon, Worker

PAIRS = (("resnet_graph", "gpt2"), ("decoder", "resnet"), ("resnet_graph", "resnet"), ("decoder", "gpt2"),
         ("encoder_graph", "gpt2"), ("resnet_graph", "products"), ("resnet", "gpt2"), ("encoder", "copies"))
LOAD = 0.5          # of the time that the service needs alone
LOAD_S = 12         # limit of loading, of the first time above all
BESIDES_S = 6       # what loading and answers of a phase usually take: it starts where there is time for that
LEAD_S = 0.8        # the trainer runs so long before anything counts
ANSWER_S = 4        # limit of the answers after a phase's end
CLEAN_UP_S = 12     # MPS, too, ends with its daemon

# device: the gate is asked for. daemon: whose clients they are. mps: with MPS, which the daemon "mps" starts.
System = collections.namedtuple("System", "name daemon device mps service")
SYSTEMS = (System("tessera", "plain", False, False, "tessera"), System("device", "device", True, False, "device"),
           System("device_mps", "mps", True, True, "tessera_mps"), System("tessera_mps", "mps", False, True, "tessera_mps"),
           System("mps_low", None, False, True, "mps_low"), System("one_process", None, False, False, "one_process"),
           System("bare", None, False, False, "bare"))


class Headline:
    def __init__(self, options):
        self.options, self.began_s = options, time.monotonic()
        self.end_s = self.began_s + options.budget
        self.out = options.out
        self.patience = 5 if options.rehearse else 1  # a rehearsal shares its machine with other tests
        self.out.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-headline-"))
        self.errors = open(self.out / "headline.err", "w")
        self.daemons, self.workers, self.loaded = {}, {}, {}
        self.alone = {"service": {}, "trainer": {}}
        self.summary = {"question": "headline", "budget_s": options.budget, "phase_s": options.seconds,
                        "rehearsed": options.rehearse, "systems": {}, "alone": self.alone, "answers": {}, "left_out": []}

    def left_s(self):
        return self.end_s - CLEAN_UP_S - time.monotonic()

    def write(self):
        new = self.out / "headline.json.new"
        new.write_text(json.dumps(self.summary, indent=1) + "\n")
        new.replace(self.out / "headline.json")

    def say(self, text):
        print(f"{time.monotonic() - self.began_s:6.1f} {text}", flush=True)

    # The daemons first: the one with MPS says where its pipe is.
    def start(self):
        bins, gpu = self.options.build / "bin", "soft" if self.options.rehearse else "auto"
        soft = {"TESSERA_SOFTGPU_LINGER_MS": "200"} if self.options.rehearse else {}
        configurations = {"plain": "", "device": "", "mps": '[mps]\nmode = "manage"\n'}
        for name, text in configurations.items():
            self.daemons[name] = Daemon(bins, self.folder / name, text, soft, self.errors)
        ready = {name: daemon.line(min(self.end_s, time.monotonic() + 15)) is not None for name, daemon in self.daemons.items()}
        mps = self.daemons["mps"].mps_state() if ready["mps"] else {}
        pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(self.daemons["mps"].pipe_directory)}
        options = ["--rehearse"] if self.options.rehearse else []

        def start(name, script, priority, system, environment):
            prefix = []
            if system.daemon:
                prefix = [str(bins / "tessera"), "run", "--gpu", gpu, "--socket", self.daemons[system.daemon].socket,
                          "--priority", priority, "--"]
            elif self.options.rehearse:
                environment = {**environment, "LD_LIBRARY_PATH": str(self.options.build / "lib/softgpu")}
            self.workers[name] = Worker(script, prefix, {**soft, **environment}, options, self.errors)

        for system in SYSTEMS:
            why = None
            if system.daemon and not ready[system.daemon]:
                why = "its daemon is not ready"
            elif system.mps and not mps.get("active"):
                why = f"no MPS: {mps.get('reason')}"
            self.summary["systems"][system.name] = why or "started"
            if why:
                continue
            if system.name == "one_process":  # two threads, streams of the highest and the lowest priority
                bare = {"LD_LIBRARY_PATH": str(self.options.build / "lib/softgpu")} if self.options.rehearse else {}
                pair = processes.both([], {**soft, **bare}, options, self.errors)
                self.workers["service/one_process"], self.workers["trainer/one_process"] = pair
                continue
            outside = pipe if system.mps and not system.daemon else {}
            if "service/" + system.service not in self.workers:
                start("service/" + system.service, "service.py", "high", system, outside)
            trainer = dict(outside)
            if system.device:
                trainer["TESSERA_GATE"] = "device"
            if system.name == "mps_low":
                trainer["CUDA_MPS_CLIENT_PRIORITY"] = "1"
            start("trainer/" + system.name, "trainer.py", "best-effort", system, trainer)
        end_s = min(self.end_s - CLEAN_UP_S, time.monotonic() + self.options.start_limit)
        for name, worker in self.workers.items():
            started = worker.answer(end_s)
            if "error" in started:
                self.summary["systems"][name] = started["error"]
            self.summary.setdefault("torch", started.get("torch"))
        self.write()
        self.say("systems: " + json.dumps(self.summary["systems"]))

    def until(self, seconds):
        """A moment so far from now, within the budget."""
        return time.monotonic() + min(seconds * self.patience, max(0, self.left_s()))

    def fits(self, name, seconds):
        """Is there time for a phase, its loading and its answers?"""
        if BESIDES_S + LEAD_S + seconds <= self.left_s():
            return True
        self.summary["left_out"].append(name)
        self.write()
        return False

    def load(self, roles):
        """roles: worker and program. The service keeps what it has loaded; the trainer begins again."""
        answers, end_s = {}, self.until(LOAD_S)
        sent = []
        for worker, what in roles:
            if worker.startswith("service/") and (worker, what) in self.loaded:
                answers[worker] = self.loaded[worker, what]
                continue
            self.workers[worker].send(do="load", what=what)
            sent.append((worker, what))
        for worker, what in sent:
            answers[worker] = self.workers[worker].answer(end_s)
            if "error" not in answers[worker]:
                self.loaded[worker, what] = answers[worker]
        return answers

    def phase(self, service, trainer, seconds, system=None):
        """Runs (worker, program) of a service, of a trainer, or of both; their answers and what the daemon says."""
        roles = [role for role in (service, trainer) if role]
        result = {"loads": self.load(roles)}
        if any("error" in answer for answer in result["loads"].values()):
            return result
        daemon = self.daemons.get(system.daemon) if system else None
        before = daemon.client(self.workers[trainer[0]]) if daemon else {}
        at_s = time.monotonic() + LEAD_S
        if trainer:
            self.workers[trainer[0]].send(do="run", what=trainer[1], at_s=at_s, seconds=seconds)
        if service:
            self.workers[service[0]].send(do="run", what=service[1], at_s=at_s, seconds=seconds, rate_per_s=self.rate_per_s(service[1]))
        if daemon:
            time.sleep(max(0, at_s + seconds / 2 - time.monotonic()))
            middle, protected = (daemon.client(self.workers[role[0]]) for role in (trainer, service))
        end_s = at_s + seconds + self.until(ANSWER_S) - time.monotonic()
        for name, role in (("service", service), ("trainer", trainer)):
            if role:
                result[name] = self.workers[role[0]].answer(end_s)
        if daemon:
            after = daemon.client(self.workers[trainer[0]])
            result["tessera"] = {"daemon_lives": daemon.alive(), "clients": [bool(protected), bool(middle)], "gate": middle.get("gate"),
                                 "gate_boundaries": after.get("gate_boundaries", 0) - before.get("gate_boundaries", 0),
                                 "held_ms": (after.get("held_ns", 0) - before.get("held_ns", 0)) / 1e6,
                                 "gate_openings": after.get("gate_openings", 0) - before.get("gate_openings", 0),
                                 "hold_expired": after.get("hold_expired", 0) - before.get("hold_expired", 0)}
        if trainer:
            self.workers[trainer[0]].send(do="unload")
            self.workers[trainer[0]].answer(self.until(ANSWER_S))
        return result

    def rate_per_s(self, what):
        return LOAD * 1e3 / self.loaded["service/bare", what]["alone_ms"]

    def measure_alone(self, service, trainer):
        """What the pair does without the other and without Tessera; the trainer twice, whether its losses repeat."""
        if service not in self.alone["service"] and self.fits("alone/" + service, self.options.seconds):
            self.alone["service"][service] = self.phase(("service/bare", service), None, self.options.seconds).get("service", {})
            self.write()
            self.say(f"alone {service}: {json.dumps(self.alone['service'][service])}")
        if trainer not in self.alone["trainer"] and self.fits("alone/" + trainer, self.options.seconds):
            role = ("trainer/bare", trainer)
            first = self.phase(None, role, self.options.seconds).get("trainer", {})
            again = self.phase(None, role, 0.2).get("trainer", {}) if self.fits("again/" + trainer, 0.2) else {}
            first["repeats"] = same_losses(first, again)
            self.alone["trainer"][trainer] = first
            self.write()
            self.say(f"alone {trainer}: {json.dumps({k: v for k, v in first.items() if k != 'losses'})}")
        return all(self.alone[role].get(what, {}).get("done") for role, what in (("service", service), ("trainer", trainer)))

    def run(self):
        self.start()
        for service, trainer in PAIRS[:self.options.pairs]:
            if not self.measure_alone(service, trainer):
                continue
            services = dict.fromkeys("service/" + system.service for system in SYSTEMS)
            if self.fits(f"services/{service}", 0):  # all at once: most of it is the CPU's work
                self.load([(name, service) for name in services if name in self.workers and self.workers[name].alive()])
            for system in SYSTEMS:
                name = f"{service}+{trainer}/{system.name}"
                workers = ["service/" + system.service, "trainer/" + system.name]
                if not all(w in self.workers and self.workers[w].alive() for w in workers):
                    self.summary["left_out"].append(name)
                    continue
                if not self.fits(name, self.options.seconds):
                    continue
                result = self.phase((workers[0], service), (workers[1], trainer), self.options.seconds, system)
                result.update(judged(result, self.alone["service"][service], self.alone["trainer"][trainer], system))
                self.summary["answers"][name] = result
                self.write()
                self.say(f"{name}: " + " ".join(f"{k}={v}" for k, v in result.items() if not isinstance(v, dict)))

    def end(self):
        end_s = time.monotonic() + CLEAN_UP_S - 1
        for processes in (self.workers.values(), self.daemons.values()):  # MPS outlives its clients
            for process in processes:
                process.end()
            for process in processes:
                process.gone(end_s)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.summary["took_s"] = round(time.monotonic() - self.began_s, 1)
        self.write()


def same_losses(a, b):
    """Of the steps that both took; None where one took none."""
    both = list(zip(a.get("losses", []), b.get("losses", [])))
    return all(x == y for x, y in both) if both else None


def judged(result, service_alone, trainer_alone, system):
    """The figures over those alone, and whether the answer counts."""
    service, trainer, tessera = result.get("service", {}), result.get("trainer", {}), result.get("tessera")
    wrong = [f"{role}: {answer['error']}" for role, answer in (*result["loads"].items(), *result.items())
             if isinstance(answer, dict) and "error" in answer]
    figures = {}
    for q in ("p50", "p99"):
        with contextlib.suppress(KeyError, ZeroDivisionError):
            figures[q] = round(service[f"latency_{q}_ms"] / service_alone[f"latency_{q}_ms"], 3)
    with contextlib.suppress(KeyError, ZeroDivisionError):
        figures["share"] = round(trainer["steps_per_s"] / trainer_alone["steps_per_s"], 3)
    if not service.get("requests") or not trainer.get("steps"):
        wrong.append("no requests or no steps")
    elif service["digest"] != service_alone["digest"] and service_alone["distinct_answers"] == 1:
        wrong.append("the service's answers differ")
    if same_losses(trainer, trainer_alone) is False and trainer_alone["repeats"] is not False:
        wrong.append("the losses differ")
    if tessera:
        if not tessera["daemon_lives"]:
            wrong.append("the daemon has ended")
        if not all(tessera["clients"]):
            wrong.append("not both are clients")
        if system.device and (tessera["gate"] != "device" or tessera["gate_boundaries"] <= 0):
            wrong.append(f"gate {tessera['gate']}, {tessera['gate_boundaries']} boundaries")
    return {**figures, "losses_repeat_alone": trainer_alone["repeats"], "ok": not wrong, "wrong": "; ".join(wrong) or None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder with bin/ and lib/")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="gets headline.json and headline.err")
    parser.add_argument("--budget", type=float, default=240, help="seconds, cleaning up included")
    parser.add_argument("--seconds", type=float, default=3, help="length of a phase")
    parser.add_argument("--pairs", type=int, default=len(PAIRS), help="only the first pairs")
    parser.add_argument("--start-limit", type=float, default=90, help="seconds until the programs must have started")
    parser.add_argument("--rehearse", action="store_true", help="on the software GPU, without PyTorch")
    options = parser.parse_args()
    processes.arranged(options)
    options.out = options.out.resolve()
    headline = Headline(options)
    try:
        headline.run()
    finally:
        processes.ending()
        headline.end()
    answers = headline.summary["answers"]
    good = sum(answer["ok"] for answer in answers.values())
    print(json.dumps({"question": "headline", "answers": len(answers), "ok": good, "left_out": len(headline.summary["left_out"]),
                      "took_s": headline.summary["took_s"]}))
    return 0 if answers else 1  # what is not ok is an answer, too


if __name__ == "__main__":
    sys.exit(main())
