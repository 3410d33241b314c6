package gateway_test

import (
	"testing"

	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
)

// TestConformance runs the suite over a link in memory.
func TestConformance(t *testing.T) {
	gatewaytest.Run(t, gatewaytest.Stack)
}
