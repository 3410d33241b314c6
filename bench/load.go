package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// loaded is what a load program tells.
type loaded struct {
	MS    float64 `json:"ms"`    // from the first byte to the last
	Bytes int64   `json:"bytes"` // that came
}

// Load is the load generator, the same inside a cell and outside: "requests URL NUMBER
// CONNECTIONS", or "stream ADDRESS BYTES", which reads that many bytes from the server.
func Load(args []string, out io.Writer) error {
	var l loaded
	var err error
	switch {
	case len(args) == 4 && args[0] == "requests":
		l, err = loadRequests(args[1], args[2], args[3])
	case len(args) == 3 && args[0] == "stream":
		l, err = loadStream(args[1], args[2])
	default:
		err = errors.New("cannot make load: say requests URL NUMBER CONNECTIONS, or stream ADDRESS BYTES")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(l)
}

func loadRequests(url, number, conns string) (l loaded, err error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return l, err
	}
	k, err := strconv.Atoi(conns)
	if err != nil {
		return l, err
	}
	t := &http.Transport{MaxIdleConnsPerHost: k, MaxConnsPerHost: k}
	client := &http.Client{Transport: t, Timeout: time.Minute}
	get := func() error {
		res, err := client.Get(url)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err == nil && (res.StatusCode != http.StatusOK || len(b) != answerSize) {
			err = fmt.Errorf("%s: %d bytes: %.200q", res.Status, len(b), b)
		}
		return err
	}
	each := func(n int) error {
		var left atomic.Int64
		left.Store(int64(n))
		errs := make([]error, k)
		var wg sync.WaitGroup
		for i := range k {
			wg.Go(func() {
				for errs[i] == nil && left.Add(-1) >= 0 {
					errs[i] = get()
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	if err := each(k); err != nil { // the connections
		return l, err
	}
	start := time.Now()
	err = each(n)
	return loaded{MS: toMS(time.Since(start)), Bytes: int64(n) * answerSize}, err
}

func loadStream(address, bytes string) (l loaded, err error) {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return l, err
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return l, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(c, "%d\n", n); err != nil {
		return l, err
	}
	buf := make([]byte, 1<<20)
	start := time.Now()
	for l.Bytes < n && err == nil {
		var k int
		k, err = c.Read(buf)
		l.Bytes += int64(k)
	}
	l.MS = toMS(time.Since(start))
	if l.Bytes == n {
		err = nil
	}
	return l, err
}
