package linux

// NativeArch is the architecture this program was built for.
const NativeArch = ARM64
