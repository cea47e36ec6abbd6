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

PAIRS = (("resnet_graph", "gpt2"), ("decoder", "gpt2"), ("resnet_graph", "resnet"), ("decoder", "resnet"),
         ("encoder_graph", "gpt2"), ("resnet_graph", "products"), ("resnet", "gpt2"), ("encoder", "copies"))
N_FIRST_PAIRS = 2   # each turn of systems asks these, before a pair that comes later asks any
LOAD = 0.5          # of the time that the service needs alone
LOAD_S = 12         # limit of loading, of the first time above all
BESIDES_S = 5       # what loading and answers of a phase usually take: it starts where there is time for that
START_S = 10        # what starting the programs of a turn usually takes
LEAD_S = 0.5        # the trainer runs alone before anything counts
ANSWER_S = 4        # limit of the answers after a phase's end
CLEAN_UP_S = 12     # MPS, too, ends with its daemon

# device: the gate is asked for. daemon: whose clients they are. mps: with MPS, which the daemon "mps" starts. one: both are threads of
# one process, on streams of the highest and the lowest priority.
System = collections.namedtuple("System", "name daemon device mps one service")
BARE = System("bare", None, False, False, False, "bare")
# In turns, whose programs start together, so that the first figures come early: the product in each regime, the same the other way
# round, the rivals, the rest.
TURNS = ((System("tessera", "plain", False, False, False, "tessera"), System("device_mps", "mps", True, True, False, "tessera_mps")),
         (System("device", "device", True, False, False, "device"), System("tessera_mps", "mps", False, True, False, "tessera_mps")),
         (System("mps_low", None, False, True, False, "mps_low"), System("one_process", None, False, False, True, "one_process")),
         (System("one_process_mps", None, False, True, True, "one_process_mps"), BARE))


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
        self.absent, self.no_mps, self.of_mps, self.of_all = {}, None, {}, {}
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

    def start_daemons(self):
        soft = {"TESSERA_SOFTGPU_LINGER_MS": "200"} if self.options.rehearse else {}
        configurations = {"plain": "", "device": "", "mps": '[mps]\nmode = "manage"\n'}
        for name, text in configurations.items():
            self.daemons[name] = Daemon(self.options.build / "bin", self.folder / name, text, soft, self.errors)
        ready = {name: daemon.line(min(self.end_s, time.monotonic() + 15)) is not None for name, daemon in self.daemons.items()}
        self.absent = {name: "its daemon is not ready" for name, is_ready in ready.items() if not is_ready}
        mps = self.daemons["mps"].mps_state() if ready["mps"] else {}
        self.no_mps = None if mps.get("active") else f"no MPS: {mps.get('reason')}"
        self.of_mps = self.daemons["mps"].clients_of_mps(self.options.rehearse)  # which says where its pipe is
        self.of_all = soft

    def start(self, systems):
        """Those of their programs that are not there, all at once."""
        before = set(self.workers)
        for system in systems:
            if system.name not in self.summary["systems"]:
                why = self.absent.get(system.daemon) or (system.mps and self.no_mps)
                self.summary["systems"][system.name] = why or "started"
                if not why:
                    self.start_pair(system)
        started = {name: worker for name, worker in self.workers.items() if name not in before}
        if not started:
            return
        end_s = min(self.end_s - CLEAN_UP_S, time.monotonic() + self.options.start_limit)
        for name, worker in started.items():
            answer = worker.answer(end_s)
            if "error" in answer:
                self.summary["systems"][name] = answer["error"]
            self.summary.setdefault("torch", answer.get("torch"))
        self.write()
        self.say("systems: " + json.dumps({system.name: self.summary["systems"][system.name] for system in systems}))

    def start_pair(self, system):
        environment = {**self.of_all, **(self.of_mps if system.mps else {})}
        options = ["--rehearse"] if self.options.rehearse else []
        if self.options.rehearse and not system.daemon:
            environment["LD_LIBRARY_PATH"] = str(self.options.build / "lib/softgpu")
        names = service, trainer = "service/" + system.service, "trainer/" + system.name
        if system.one:
            self.workers.update(zip(names, processes.both([], environment, options, self.errors)))
            return

        def run(priority):
            if not system.daemon:
                return []
            return [str(self.options.build / "bin/tessera"), "run", "--gpu", "soft" if self.options.rehearse else "auto",
                    "--socket", self.daemons[system.daemon].socket, "--priority", priority, "--"]

        if service not in self.workers:
            self.workers[service] = Worker("service.py", run("high"), environment, options, self.errors)
        own = {"TESSERA_GATE": "device"} if system.device else {"CUDA_MPS_CLIENT_PRIORITY": "1"} if system.name == "mps_low" else {}
        self.workers[trainer] = Worker("trainer.py", run("best-effort"), {**environment, **own}, options, self.errors)

    def until(self, seconds):
        """A moment so far from now, within the budget."""
        return time.monotonic() + min(seconds * self.patience, max(0, self.left_s()))

    def fits(self, name, seconds):
        """Is there time for a phase, its loading and its answers?"""
        if BESIDES_S + LEAD_S + seconds <= self.left_s():
            return True
        self.leave_out(name)
        return False

    def leave_out(self, name):
        if name not in self.summary["left_out"]:
            self.summary["left_out"].append(name)
            self.write()

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

    def measure_alone(self, role, what):
        """What it does without a neighbour and without Tessera, once; nothing where there is no time."""
        if what not in self.alone[role] and self.fits("alone/" + what, self.options.seconds):
            roles = {"service": None, "trainer": None, role: (f"{role}/bare", what)}
            self.alone[role][what] = self.phase(**roles, seconds=self.options.seconds).get(role, {})
            self.write()
            self.say(f"alone {what}: {json.dumps({k: v for k, v in self.alone[role][what].items() if k != 'losses'})}")
        return self.alone[role].get(what, {}).get("done")

    def losses_repeat(self, trainer):
        """Alone; asked once, where somebody's losses differed. None: there is no time to ask."""
        alone = self.alone["trainer"][trainer]
        if "repeats" not in alone and self.fits("again/" + trainer, 0.2):
            alone["repeats"] = same_losses(alone, self.phase(None, ("trainer/bare", trainer), 0.2).get("trainer", {}))
        return alone.get("repeats")

    def lives(self, worker):
        return worker in self.workers and self.workers[worker].alive()

    def run(self):
        self.start_daemons()
        pairs = PAIRS[:self.options.pairs]
        for together in (pairs[:N_FIRST_PAIRS], pairs[N_FIRST_PAIRS:]):
            for turn in TURNS:
                systems = (*turn, BARE)
                if any(system.name not in self.summary["systems"] for system in systems) and self.fits("start/" + turn[0].name, START_S):
                    self.start(systems)
                for service, trainer in together:
                    self.ask(service, trainer, turn)

    def ask(self, service, trainer, systems):
        named = {f"{service}+{trainer}/{system.name}": system for system in systems}
        known = self.measure_alone("service", service) and self.measure_alone("trainer", trainer)
        ready = {name: system for name, system in named.items()
                 if known and all(self.lives(f"{role}/{what}") for role, what in (("service", system.service), ("trainer", system.name)))}
        if ready and self.fits(f"services/{service}", 0):  # at once: most of it is the CPU's work
            self.load([("service/" + system.service, service) for system in ready.values()])
        for name, system in named.items():
            if name not in ready:
                self.leave_out(name)
            elif self.fits(name, self.options.seconds):
                self.summary["answers"][name] = self.answer(service, trainer, system)
                self.write()
                self.say(f"{name}: " + " ".join(f"{k}={v}" for k, v in self.summary["answers"][name].items() if not isinstance(v, dict)))

    def answer(self, service, trainer, system):
        result = self.phase(("service/" + system.service, service), ("trainer/" + system.name, trainer), self.options.seconds, system)
        alone = self.alone["service"][service], self.alone["trainer"][trainer]
        same = same_losses(result.get("trainer", {}), alone[1])
        return {**result, **judged(result, *alone, system, same is False and self.losses_repeat(trainer) is not False)}

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


def judged(result, service_alone, trainer_alone, system, other_losses):
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
    if other_losses:
        wrong.append("the losses differ")
    if tessera:
        if not tessera["daemon_lives"]:
            wrong.append("the daemon has ended")
        if not all(tessera["clients"]):
            wrong.append("not both are clients")
        if system.device and (tessera["gate"] != "device" or tessera["gate_boundaries"] <= 0):
            wrong.append(f"gate {tessera['gate']}, {tessera['gate_boundaries']} boundaries")
    return {**figures, "losses_repeat_alone": trainer_alone.get("repeats"), "ok": not wrong, "wrong": "; ".join(wrong) or None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="folder with bin/ and lib/")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="gets headline.json and headline.err")
    parser.add_argument("--budget", type=float, default=240, help="seconds, cleaning up included")
    parser.add_argument("--seconds", type=float, default=2, help="length of a phase")
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
