package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// What is not UTF-8 is refused before it is sent, by name; all else is sent as it is.
func TestTextsAreSentAsTheyAre(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++; w.Write([]byte("{}")) }))
	defer s.Close()
	c := New(Config{Host: s.URL, Token: "t"})
	for _, arg := range []string{"caf\xe9", "\xff", "a\\\xfe", "\\\\\xfe\"", "\xed\xb3\xa9"} {
		asked = 0
		for name, ask := range map[string]func() error{
			"raw": func() error {
				return c.do(context.Background(), "POST", "/v1/runs", nil, api.RunRequest{Command: []string{"cat", arg}}, nil)
			},
			"begin": func() error {
				_, err := c.Begin(context.Background(), "run", "", api.RunRequest{Command: []string{"cat", arg}})
				return err
			},
			"key": func() error {
				return c.do(context.Background(), "POST", "/v1/runs", nil, map[string]string{arg: "x"}, nil)
			},
		} {
			if err := ask(); err == nil || !strings.Contains(err.Error(), "it is not UTF-8") || !strings.Contains(err.Error(), `\ufffd`) {
				t.Errorf("%s %q: %v", name, arg, err)
			}
		}
	}
	for _, arg := range []string{"", "café", "\ufffd", `\ufffd`, `\\ufffd`, `"\ufffd"`, "\u2028\x00\x1f<>&", `\`, `"`, "😀"} {
		b, err := encode(api.RunRequest{Command: []string{"cat", arg, arg}})
		if err != nil {
			t.Errorf("%q: %v", arg, err)
		}
		if len(b) == 0 {
			t.Errorf("%q: nothing is sent", arg)
		}
	}
}
