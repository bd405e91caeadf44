// What PyTorch asks a backend through its hooks interface.
#pragma once

namespace neuron {

void register_hooks();

} // namespace neuron
