"""The `optimum-cli neuron` commands, one module per verb."""
