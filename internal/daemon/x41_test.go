package daemon

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestX41TheLastRequestsAreWrittenDown: a daemon that ends waits for requests that
// go on after their connections were closed, and not for ever.
func TestX41TheLastRequestsAreWrittenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{common: &common{}}
		goOn, written := make(chan struct{}), false
		h := d.count(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			<-goOn
			written = true // as the audit log's line is, when the handler returns
		}))
		stream := make(chan struct{})
		defer close(stream)
		go d.count(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // a WebSocket
			r.Context().Value(underKey{}).(func())()
			<-stream
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		synctest.Wait()
		if !d.finish(time.Second) {
			t.Error("a stream holds the daemon back")
		}
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
		synctest.Wait()
		if d.finish(time.Second) {
			t.Error("a request goes on, and nothing waited for it")
		}
		time.AfterFunc(time.Second, func() { close(goOn) })
		if !d.finish(finishing) || !written {
			t.Error("the daemon has ended before its last request")
		}
	})
}
