package workspacetest_test

import (
	"os"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
	"github.com/pando-dev/pando/internal/workspace/overlay"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestMain(m *testing.M) { workspacetest.Main(m) }

func TestProvidersAgree(t *testing.T) {
	workspacetest.Equal(t,
		func(root string) workspace.Provider { return overlay.New(root, os.Geteuid() == 0) },
		func(root string) workspace.Provider { return clone.New(root) })
}
