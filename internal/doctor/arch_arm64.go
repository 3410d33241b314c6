package doctor

const isARM64 = true
