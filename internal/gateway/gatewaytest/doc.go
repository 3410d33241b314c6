// Package gatewaytest is the conformance suite of gateways as seen from inside a
// cell, and what tests of them need: a cell's end of a link, hosts outside, and
// a policy of a few rules.
//
// A package that joins cells to gateways in another way passes Run unchanged. Nothing
// leaves the machine: the names are those of a test's own DNS, and the hosts are servers on
// loopback.
package gatewaytest
