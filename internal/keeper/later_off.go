//go:build !pando_later

package keeper

// later is 1 in a build that tests take for the next release: its protocol has the next number.
const later = 0
