package cli

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
)

// The flags of services are read as a shell's words, and a variable goes to the service that it names.
func TestServiceFlags(t *testing.T) {
	t.Setenv("MINE", "passed")
	for _, c := range []struct {
		services, env []string
		want          []api.ServiceRequest
		fails         string
		ready         []string
	}{
		{services: []string{"postgres:16"}, env: []string{"A=b:c", "MINE"}, want: []api.ServiceRequest{{Image: "postgres:16", Command: []string{}, Env: []string{"A=b:c", "MINE=passed"}}}},
		{services: []string{`db=docker.io/x/pg:1@sha256:0 -c "a b"`, "redis"}, env: []string{"db:A=1", "redis:B=2"}, want: []api.ServiceRequest{
			{Name: "db", Image: "docker.io/x/pg:1@sha256:0", Command: []string{"-c", "a b"}, Env: []string{"A=1"}}, {Image: "redis", Command: []string{}, Env: []string{"B=2"}}}},
		{services: []string{"dockerfile:a=b"}, want: []api.ServiceRequest{{Image: "dockerfile:a=b", Command: []string{}}}},
		{services: []string{"a", "b"}, env: []string{"A=1"}, fails: "write NAME:A=1"},
		{services: []string{"a"}, env: []string{"c:A=1"}, fails: "no --service has the name c"},
		{services: []string{"a", "r=b"}, ready: []string{"r:wget -q http://localhost", "a:true"}, want: []api.ServiceRequest{
			{Image: "a", Command: []string{}, Ready: "true"}, {Name: "r", Image: "b", Command: []string{}, Ready: "wget -q http://localhost"}}},
		{services: []string{"a"}, ready: []string{"wget -q http://localhost"}, want: []api.ServiceRequest{{Image: "a", Command: []string{}, Ready: "wget -q http://localhost"}}},
		{services: []string{"a", "b"}, ready: []string{"wget -q http://localhost"}, fails: "write NAME:COMMAND"},
		{services: []string{"a"}, ready: []string{"true", "a:false"}, fails: "one command for each service"},
		{services: []string{"a"}, ready: []string{"a: "}, fails: "one command for each service"},
		{services: []string{" "}, fails: "--service takes"},
		{services: []string{`a "b`}, fails: "--service takes"},
	} {
		got, err := (&serviceFlags{c.services, c.env, c.ready}).requests()
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q %q: %v", c.services, c.env, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q %q: %+v, %v", c.services, c.env, got, err)
		}
	}
}
