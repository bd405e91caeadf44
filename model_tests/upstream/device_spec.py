"""What Diffusers' and Transformers' tests need to know of a device: the file that their `*_TEST_DEVICE_SPEC` names."""

import torch


DEVICE_NAME = "neuron"
MANUAL_SEED_FN = torch.manual_seed
EMPTY_CACHE_FN = torch.neuron.empty_cache
DEVICE_COUNT_FN = torch.neuron.device_count
RESET_PEAK_MEMORY_STATS_FN = torch.neuron.reset_peak_memory_stats
RESET_MAX_MEMORY_ALLOCATED_FN = torch.neuron.reset_peak_memory_stats
MAX_MEMORY_ALLOCATED_FN = torch.neuron.max_memory_allocated
SUPPORTS_TRAINING = True
# Tests that would start a process of their own run in this one: a Trainium core belongs to one process.
SINGLE_PROCESS_DEVICE = True
