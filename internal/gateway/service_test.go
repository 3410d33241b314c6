package gateway

import "testing"

// A question for a service's servers is one about its host: apt asks so before
// it asks for the host, and would be told of as denied.
func TestServiceNamesAreJudgedAsTheirHost(t *testing.T) {
	for name, want := range map[string]string{
		"_http._tcp.deb.debian.org": "deb.debian.org",
		"_x._udp.example":           "example",
		"deb.debian.org":            "",
		"_http.deb.debian.org":      "", // no service: a name like any other
		"http._tcp.deb.debian.org":  "",
		"_http._tcp":                "",
		"_http":                     "",
		"":                          "",
	} {
		host, service := serviceOf(name)
		if service != (want != "") || service && host != want || !service && host != name {
			t.Errorf("%q is %q, %v", name, host, service)
		}
	}
}
