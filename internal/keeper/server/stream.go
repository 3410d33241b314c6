package server

import (
	"net"
	"os"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// Streams are the two outputs of a process, for backends that write to them from this
// process.
type Streams struct {
	Stdout, Stderr *Output
	in             *intake
}

// NewStreams keeps what is written in the two files, or in memory where there is
// none, as start says.
func NewStreams(stdout, stderr *os.File, start *cell.Start) Streams {
	return Streams{newOutput("stdout", stdout, start), newOutput("stderr", stderr, start), &intake{}}
}

// Write implements io.Writer. It never fails: what is beyond the limit is counted.
func (o *Output) Write(b []byte) (int, error) {
	o.add(b)
	return len(b), nil
}

// End makes what was written until now all there is.
func (s Streams) End() {
	s.Stdout.close()
	s.Stderr.close()
}

// Release frees what is kept; no client can attach any more.
func (s Streams) Release() {
	s.Stdout.release()
	s.Stderr.release()
}

// Status is how much was written.
func (s Streams) Status() (stdout, stderr cell.StreamStatus) {
	return s.Stdout.status(), s.Stderr.status()
}

// Kept is what is kept in memory.
func (s Streams) Kept() (stdout, stderr []byte) { return s.Stdout.all(), s.Stderr.all() }

// Attach sends both outputs from their offsets on, as frames, and then the exit
// that ended returns when done is closed. feed gets the frames of the client, nil
// if there are none to be had.
func (s Streams) Attach(c net.Conn, req proto.Attachment, feed func(api.Frame), done <-chan struct{}, ended func() cell.Status) {
	if !req.Input {
		feed = nil
	}
	attach(c, req, s.Stdout, s.Stderr, feed, s.in, done, ended)
}
