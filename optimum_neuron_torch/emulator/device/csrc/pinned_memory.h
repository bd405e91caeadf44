// Page-locked host memory, as far as an emulator has it: ordinary host memory that is known to be "pinned".
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace neuron {

at::HostAllocator* pinned_allocator();

// Whether `pointer` lies inside memory that pinned_allocator() gave out.
bool is_pinned(const void* pointer);

} // namespace neuron
