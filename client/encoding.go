package client

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// encoding asks a daemon on another host for compressed answers. On the same host, compression
// would cost more than it saves.
func (c *Client) encoding(h http.Header) {
	if c.remote != nil && c.remote.tls != nil {
		h.Set("Accept-Encoding", "gzip")
	}
}

// decoded decompresses the body of an answer.
func decoded(resp *http.Response) {
	if !strings.EqualFold(resp.Header.Get("Content-Encoding"), "gzip") {
		return
	}
	resp.Body = &inflated{body: resp.Body}
	if tag, ok := strings.CutSuffix(resp.Header.Get("ETag"), `-gzip"`); ok {
		resp.Header.Set("ETag", tag+`"`)
	}
	resp.Header.Del("Content-Encoding")
	resp.ContentLength = -1
}

// inflated is the content of a gzip body. It reads nothing before it is asked to: the body of a
// stream may come late.
type inflated struct {
	body io.ReadCloser
	z    *gzip.Reader
}

func (i *inflated) Read(p []byte) (n int, err error) {
	if i.z == nil {
		if i.z, err = gzip.NewReader(i.body); err != nil {
			return 0, err
		}
	}
	return i.z.Read(p)
}

func (i *inflated) Close() error { return i.body.Close() }
