// Package credential keeps secrets that are lent to cells by handle. A cell
// never gets the value: it gets a placeholder that is worth nothing elsewhere,
// and the gateway puts the value into the requests that the credential is for.
//
// The package owns the store (encrypted at rest), what is known of well-known
// services, the placeholders, and the scanner that looks for values in what a
// run left behind. It knows neither cells' records nor networks: who has a
// credential now is the engine's, and where a value goes is the gateway's.
//
// At rest, each credential is one file, encrypted with age for the key in the
// installation's key folder (mode 0600). That keeps values out of backups, out
// of searches and out of whatever reads the state without the keys; it does not
// keep them from whoever can read everything the user can.
package credential
