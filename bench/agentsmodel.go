package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// modelServer poses as the model of any agent, on loopback. It notes when it is first asked for an
// answer, and never gives one: the agent is ended then.
type modelServer struct {
	url   string
	close func() error

	mu    sync.Mutex
	asked chan time.Time // gets the next request; nil: nothing waits for one
}

// atOncePath is asked by the program that asks at once; it is answered, with answerSize bytes.
const atOncePath = "/at-once"

func startModel() (*modelServer, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &modelServer{url: "http://" + ln.Addr().String()}
	s := &http.Server{Handler: m}
	m.close = s.Close
	go s.Serve(ln)
	return m, nil
}

// ServeHTTP implements http.Handler.
func (m *modelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	came := time.Now()
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return
	}
	switch {
	case r.URL.Path == atOncePath:
		m.note(came)
		w.Write([]byte(strings.Repeat("x", answerSize)))
	case r.Method == http.MethodPost && asksModel(r.URL.Path) && strings.Contains(string(body), agentTask):
		m.note(came)
		<-r.Context().Done()
	default: // models there are, limits, whether it can be reached
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "{}")
	}
}

// asksModel reports whether a path is that of a question to a model, in one of the interfaces that
// agents speak.
func asksModel(path string) bool {
	for _, end := range []string{"/messages", "/responses", "/chat/completions", ":generateContent", ":streamGenerateContent"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

func (m *modelServer) note(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked != nil {
		m.asked <- at
		m.asked = nil
	}
}

// firstOf starts an agent, waits until it asks its model, and ends the program that was started. shown, which
// may be nil, gets what it writes.
func (m *modelServer) firstOf(ctx context.Context, c command, terminal bool, shown func(at time.Duration, text []byte)) (time.Duration, error) {
	asked := make(chan time.Time, 1)
	m.mu.Lock()
	m.asked = asked
	m.mu.Unlock()
	began := time.Now()
	p, err := c.begin(terminal, func(text []byte) {
		if shown != nil {
			shown(time.Since(began), text)
		}
	})
	if err != nil {
		return 0, err
	}
	late := time.NewTimer(bootPatience)
	defer late.Stop()
	select {
	case at := <-asked:
		p.end()
		return at.Sub(began), nil
	case <-p.over:
		select {
		case at := <-asked: // it asked, was answered and ended
			p.end()
			return at.Sub(began), nil
		default:
		}
		err = errors.New("it ended")
	case <-late.C:
		err = fmt.Errorf("%v passed", bootPatience)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return 0, fmt.Errorf("%s did not ask its model: %w: %s", c.words(), err, p.end())
}
