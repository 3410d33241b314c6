// Package interp is the protocol of interpreters: processes in cells that
// evaluate code, keep their state from one evaluation to the next, and can be
// forked with it. It has the keeper's end (Conn), and the built-in program of
// the cell's end, which is written in Python.
//
// One JSON object per line goes each way over a stream socket, which is the
// program's descriptor 3:
//
//	keeper                                      program
//	  │ ◀── {"ready": {…}}                        │
//	  │ {"id": 1, "op": "eval", "code": …} ─────▶ │
//	  │ ◀── {"id": 1, "evaluated": {…}}           │
//
// The program is in a cell and may be anything. What it says is bounded, answers
// one question at a time, and is believed about itself only; a program that
// breaks the protocol is one that is gone.
//
// The page for authors of programs is docs/reference/eval-protocol.md.
package interp
