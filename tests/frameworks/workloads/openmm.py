"""Molecular dynamics by OpenMM: charged particles in a periodic box, forces checked against its Reference platform."""
import importlib.metadata

import numpy
import openmm
from openmm import unit

VERSION = importlib.metadata.version("OpenMM")


def system_of(n, box):
    system = openmm.System()
    force = openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(0.9)
    for i in range(n):
        system.addParticle(40)
        force.addParticle(0.2 if i % 2 else -0.2, 0.3, 0.8)
    system.addForce(force)
    system.setDefaultPeriodicBoxVectors((box, 0, 0), (0, box, 0), (0, 0, box))
    return system


def forces(platform, properties, system, positions, steps):
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform, properties)
    context.setPositions(positions)
    context.getIntegrator().step(steps)
    state = context.getState(getPositions=True, getForces=True)
    return [numpy.array(v.value_in_unit(u)) for v, u in (
        (state.getPositions(asNumpy=True), unit.nanometer),
        (state.getForces(asNumpy=True), unit.kilojoule_per_mole / unit.nanometer))]


def work(steps):
    n, side = 512, 8
    grid = numpy.stack(numpy.meshgrid(*[numpy.arange(side) * 0.4] * 3), -1).reshape(-1, 3)
    positions = grid + numpy.random.default_rng(1).random((n, 3)) * 0.05
    system = system_of(n, side * 0.4)
    platform = openmm.Platform.getPlatformByName("CUDA")
    properties = {"Precision": "single", "DeterministicForces": "true"}
    mine = forces(platform, properties, system, positions, 0)
    reference = forces(openmm.Platform.getPlatformByName("Reference"), {}, system, positions, 0)
    error = numpy.abs(mine[1] - reference[1]).max() / numpy.abs(reference[1]).max()
    assert error < 1e-3, f"forces differ from those of the Reference platform by {error}"
    return forces(platform, properties, system, positions, steps)
