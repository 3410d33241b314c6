package server

import (
	"encoding/json"
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// attach turns a connection into the stream of one process: its output from
// the given offsets, input if this is its terminal, and its end.
func (p *Proc) attach(c net.Conn, req proto.Attachment) {
	var feed func(api.Frame)
	if req.Input {
		at := &size{}
		defer p.sizes.leave(at, p.resize)
		if req.Size != nil && p.started.Terminal != nil {
			p.sizes.set(at, *req.Size, p.resize)
		}
		feed = func(f api.Frame) { p.feed(f, at) }
	}
	attach(c, req, p.stdout, p.stderr, feed, p.intakes.of(req.Client), p.done, p.snapshot)
}

// attach sends two outputs to c and hands the frames that come to feed; with nil
// none may come. It tells the client how much input in has counted. When both outputs have
// ended and done is closed, it sends what ended returns.
func attach(c net.Conn, req proto.Attachment, stdout, stderr *Output, feed func(api.Frame), in *intake, done <-chan struct{}, ended func() cell.Status) {
	out := &frameWriter{c: c}
	stop := make(chan struct{})
	if feed != nil {
		earlier, leave := in.join()
		took := make(chan struct{}, 1)
		go func() {
			defer close(stop)
			defer leave()
			var buf []byte
			for { // until the client hangs up
				f, err := api.ReadFrame(c, &buf)
				if err != nil {
					return
				}
				feed(f)
				if f.Type == api.FrameStdin {
					in.add(len(f.Payload))
					select {
					case took <- struct{}{}:
					default:
					}
				}
			}
		}()
		go in.tell(out, earlier, took, stop)
	} else {
		go func() { // notice a hang-up
			var one [1]byte
			c.Read(one[:])
			close(stop)
		}()
	}
	var both sync.WaitGroup
	both.Go(func() { stdout.stream(out, api.FrameStdout, req.Stdout, viewOf(&req), stop) })
	both.Go(func() { stderr.stream(out, api.FrameStderr, req.Stderr, noScreen, stop) })
	both.Wait() // the end of both, or a hang-up
	select {
	case <-done:
	case <-stop:
		return
	}
	st := ended()
	b, _ := json.Marshal(st)
	out.write(api.Frame{Type: api.FrameExit, Payload: b})
}

// feed does what a frame of the client with a terminal of this size says.
func (p *Proc) feed(f api.Frame, at *size) {
	switch f.Type {
	case api.FrameStdin:
		if t := p.started.Terminal; t != nil {
			if at.Rows == 0 { // it can't see the screen
				p.opens()
			}
			p.typed()
			t.Write(f.Payload)
		} else if in := p.input(); in != nil {
			if _, err := in.Write(f.Payload); errors.Is(err, unix.EPIPE) {
				p.closeInput()
			}
		}
	case api.FrameStdinEOF:
		if p.started.Terminal == nil {
			p.closeInput()
		}
	case api.FrameResize:
		var r api.Resize
		if json.Unmarshal(f.Payload, &r) == nil && p.started.Terminal != nil {
			p.sizes.set(at, r, p.resize)
		}
	case api.FrameSignal:
		p.emit("process.signal", map[string]any{"signal": string(f.Payload)})
		p.started.Process.Signal(string(f.Payload))
	}
}

// resize tells a terminal its size. (Fd would make it blocking.)
func (p *Proc) resize(r api.Resize) {
	p.stdout.resize(r)
	if elsewhere, ok := p.started.Process.(Resizer); ok {
		elsewhere.Resize(r.Rows, r.Cols)
		return
	}
	if c, err := p.started.Terminal.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: r.Rows, Col: r.Cols})
		})
	}
}

// typed notes that a person types at the terminal.
func (p *Proc) typed() {
	p.mu.Lock()
	p.status.Typed = true
	p.mu.Unlock()
}

func (p *Proc) input() interface{ Write([]byte) (int, error) } {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

func (p *Proc) closeInput() {
	p.mu.Lock()
	in := p.stdin
	p.stdin = nil
	p.mu.Unlock()
	if in != nil {
		in.Close()
	}
}

// stream sends what is kept from offset on, then what comes, until the end of
// the output or until stop. Where v says so it begins with the screen.
func (o *Output) stream(w *frameWriter, t api.FrameType, offset int64, v view, stop <-chan struct{}) {
	s, live, kept, drawn := o.subscribe(v, offset)
	defer o.unsubscribe(s)
	if drawn != nil {
		if w.screen(live, drawn) != nil {
			return
		}
		offset = live
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-stop:
			o.unsubscribe(s)
		case <-ended:
		}
	}()
	buf := make([]byte, 32<<10)
	for offset < kept {
		n := o.readKept(buf[:min(int64(len(buf)), kept-offset)], offset)
		if n == 0 || w.write(api.Output(t, offset, buf[:n])) != nil {
			break
		}
		offset += int64(n)
	}
	if offset < live {
		b, _ := json.Marshal(api.Gap{Stream: o.name, Bytes: live - offset})
		w.write(api.Frame{Type: api.FrameGap, Payload: b})
	}
	for {
		p, ok := o.next(s)
		if !ok {
			return
		}
		var err error
		if p.screen {
			err = w.screen(p.offset, p.data)
		} else {
			err = w.write(api.Output(t, p.offset, p.data))
		}
		if err != nil {
			return
		}
	}
}

// frameWriter writes frames of several goroutines to one connection.
type frameWriter struct {
	c net.Conn

	mu  sync.Mutex // guards c and buf
	buf []byte
}

func (w *frameWriter) write(f api.Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = api.AppendFrame(w.buf[:0], f)
	_, err := w.c.Write(w.buf)
	return err
}

// screenPart is how much of a screen one frame has, in bytes.
const screenPart = 64 << 10

// screen sends what draws a screen: an empty part first.
func (w *frameWriter) screen(offset int64, drawn []byte) error {
	err := w.write(api.Output(api.FrameScreen, offset, nil))
	for len(drawn) > 0 && err == nil {
		n := min(screenPart, len(drawn))
		err = w.write(api.Output(api.FrameScreen, offset, drawn[:n]))
		drawn = drawn[n:]
	}
	return err
}
