package doctor

const isARM64 = false
