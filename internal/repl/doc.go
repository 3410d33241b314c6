// Package repl is the protocol of interpreters: processes in cells that
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
// The program runs in a cell and is untrusted. Its messages are size-limited, each must answer
// one question, and they are believed only about the program itself. A program that violates
// the protocol counts as ended.
//
// The reference for authors of programs is docs/reference/eval-protocol.md.
package repl
