// Package credential keeps secrets that are lent to cells by handle. A cell never gets the
// value: it gets a placeholder that is worthless elsewhere, and the gateway puts the value
// into the requests that the credential is for.
//
// The package owns the store (encrypted at rest), the table of well-known services, the
// placeholders, and the scanner that looks for values in the output of a run. It knows
// neither cells' records nor networks: the engine knows which cell has a credential, and
// the gateway where a value goes.
//
// At rest, each credential is one file, encrypted with age for the key in the installation's
// key folder (mode 0600). That keeps values out of backups, out of searches and from any
// program that reads the state without the keys. It does not keep them from a program that
// can read everything the user can.
package credential
