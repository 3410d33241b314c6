//go:build pando_later

package keeper

const later = 1
