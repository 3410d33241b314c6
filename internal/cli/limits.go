package cli

import (
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/internal/policy"
)

// ServeLimits bound the requests and the growth of a daemon.
type ServeLimits struct {
	Rate        float64 `json:"rate"`        // requests in a second, of each token
	Requests    int64   `json:"requests"`    // requests in progress, of each token
	Connections int64   `json:"connections"` // at each address
	Failures    int64   `json:"failures"`    // burst of requests without a valid token, of each peer
	Body        int64   `json:"body"`        // bytes of a JSON body
	Archive     int64   `json:"archive"`     // bytes of any other body
	Cells       int64   `json:"cells"`       // cells in all
	Free        int64   `json:"free"`        // bytes of the state's disk; 0: 64 MiB, of a small disk less
	State       int64   `json:"state"`       // bytes of the state; 0: a tenth of its disk
}

// ServeLimit is one limit, as a flag of pando serve.
type ServeLimit struct {
	Flag, Default, Does string
	into                func(*ServeLimits) pflag.Value
}

// ServeLimitTable lists all limits, for the flags and the documents.
var ServeLimitTable = []ServeLimit{
	{"max-rate", "500", "requests in a second of each token, for a moment twice as many", func(l *ServeLimits) pflag.Value { return (*rateValue)(&l.Rate) }},
	{"max-requests", "1000", "requests under way of each token", func(l *ServeLimits) pflag.Value { return (*countValue)(&l.Requests) }},
	{"max-connections", "4096", "connections at all addresses together", func(l *ServeLimits) pflag.Value { return (*countValue)(&l.Connections) }},
	{"max-failures", "100", "requests without a valid token of each peer at once, and a tenth of that in a second afterwards", func(l *ServeLimits) pflag.Value { return (*countValue)(&l.Failures) }},
	{"max-body", "16M", "bytes of a JSON body", func(l *ServeLimits) pflag.Value { return (*sizeValue)(&l.Body) }},
	{"max-archive", "4G", "bytes of an archive that is sent", func(l *ServeLimits) pflag.Value { return (*sizeValue)(&l.Archive) }},
	{"max-cells", "100000", "cells there may be, of all callers", func(l *ServeLimits) pflag.Value { return (*countValue)(&l.Cells) }},
	{"min-free", "64M", "free bytes of the state's disk below which nothing new is made", func(l *ServeLimits) pflag.Value { return (*sizeValue)(&l.Free) }},
	{"max-state", "a tenth of the disk", "bytes that the state may hold before the oldest of what is no longer needed is removed", func(l *ServeLimits) pflag.Value { return (*sizeValue)(&l.State) }},
}

// LimitFlags adds the flags of l to f.
func LimitFlags(f *pflag.FlagSet, l *ServeLimits) {
	for _, x := range ServeLimitTable {
		v := x.into(l)
		if x.Flag != "max-state" { // its default depends on where the state is
			if err := v.Set(x.Default); err != nil { // an invalid default is a bug of the table, which its test finds
				panic(err)
			}
		}
		f.VarPF(v, x.Flag, "", x.Does).DefValue = x.Default
	}
}

// budgetValue is a budget, given in one flag or several.
type budgetValue string

func (v *budgetValue) String() string { return string(*v) }
func (v *budgetValue) Type() string   { return "budget" }
func (v *budgetValue) Set(s string) error {
	if *v != "" {
		s = string(*v) + "," + s
	}
	if _, err := policy.ParseBudget(s); err != nil {
		return err
	}
	*v = budgetValue(s)
	return nil
}

// The least limit is 1: zero would mean "no limit", which is not offered.
type (
	rateValue  float64
	countValue int64
	sizeValue  int64
)

func (v *rateValue) String() string { return strconv.FormatFloat(float64(*v), 'g', -1, 64) }
func (v *rateValue) Type() string   { return "number" }
func (v *rateValue) Set(s string) error {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n < 0.01 || n > 1e6 {
		return usage("it takes a number from 0.01 to 1000000, not %q", s)
	}
	*v = rateValue(n)
	return nil
}

func (v *countValue) String() string { return strconv.FormatInt(int64(*v), 10) }
func (v *countValue) Type() string   { return "number" }
func (v *countValue) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return usage("it takes a number from 1 to %d, not %q", math.MaxInt32, s)
	}
	*v = countValue(n)
	return nil
}

func (v *sizeValue) String() string { return policy.FormatSize(int64(*v)) }
func (v *sizeValue) Type() string   { return "size" }
func (v *sizeValue) Set(s string) error {
	n, err := policy.ParseSize(s)
	if err != nil {
		return usage("it takes a size such as 512M or 4G, not %q", s)
	}
	*v = sizeValue(n)
	return nil
}
