"""Faults of modules: parameters forgotten, kept twice or not trained, layers passed otherwise."""

import bench.models
from meta_tests.faults import fault


@fault("module.forward-through-layers")
def layers_after_the_first_are_passed_in_reverse(patch):
    def backwards(layers, x, checkpoint_every=0):
        for layer in (layers[0], *reversed(layers[1:])):
            x = layer(x)
        return x

    patch.setattr(bench.models, "through", backwards)


@fault(
    "module.cruncher-params module.param-formula-notes",
    instead_of="accounting.models.parameter_count",
)
def the_count_forgets_the_head(_, model):
    return sum(maps.parameters for maps in model.linear_maps if maps.part != "head")
