// Package wire is the recording of a run's HTTP: what a gateway keeps of requests and answers, and how it
// answers from that again.
//
// A recording is JSON Lines, one [Exchange] each, encrypted by age to the key of the credential store. It is
// written by the keeper, which can't read it again; the daemon decrypts it for a replay. age authenticates
// each piece and marks the last one, so a recording that a dead keeper left is seen to be incomplete.
//
//	gateway ── Recorder ──► age ──► file of the run's folder
//	daemon: file ──► age ──► memory file ──► keeper: Read ──► Player ──► gateway
//
// A [Recorder] and a [Player] are safe for concurrent use. Neither takes credentials out: the gateway does, before.
package wire
