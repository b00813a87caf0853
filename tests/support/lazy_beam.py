"""Functions of `rlds2reverb.beam` that import it when they are called, because importing Apache Beam takes seconds."""

import pytest


def _import():
    pytest.importorskip("apache_beam")
    from rlds2reverb import beam

    return beam


def convert_with_beam(*arguments, **options):
    return _import().convert_with_beam(*arguments, **options)


def prepare_with_beam(*arguments, **options):
    return _import().prepare_with_beam(*arguments, **options)


def summarize_with_beam(*arguments, **options):
    return _import().summarize_with_beam(*arguments, **options)


def make_options(*arguments, **options):
    return _import().BeamOptions(*arguments, **options)


def make_combiner(name, *arguments):
    return getattr(_import(), name)(*arguments)
