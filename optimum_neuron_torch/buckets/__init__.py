"""Static shapes: choosing a set of sizes, finding which axis is which, padding, and the bucketed forward."""
