package clone_test

import (
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
	"github.com/pando-dev/pando/internal/workspace/clone"
	"github.com/pando-dev/pando/internal/workspace/workspacetest"
)

func TestMain(m *testing.M) { workspacetest.Main(m) }

func TestProvider(t *testing.T) {
	workspacetest.Suite(t, func(root string) workspace.Provider { return clone.New(root) })
}
