package mcp

// addTools registers the tools.
func (s *Server) addTools() {
	add(s, "create", "Make a cell", makes, "Make a cell: an isolated place with a copy of a directory, which is not changed. With template it starts with that template's interpreter and memory.", s.create)
	add(s, "list", "List cells, templates or runs", readOnly, "List cells, templates or runs, newest first.", s.list)
	add(s, "show", "Show a cell, template or run", readOnly, "Show all details of a cell (with its checkpoints), a template, or a run.", s.showTool)
	add(s, "exec", "Run a command in a cell", changes, "Run a command in a cell and wait for its end. Its changes stay in the cell, whatever its exit code; make a checkpoint before, to be able to go back.", s.exec)
	add(s, "eval", "Evaluate code in a cell", changes, "Evaluate code in a cell's interpreter, which is started if there is none. Variables, modules and open files last from one evaluation to the next.", s.eval)
	add(s, "run", "Run a command as a governed run", makes, "Run a command as a governed run: checkpoint, command, check, verdict, signed receipt. A failure is rolled back. A success waits for the user to accept it.", s.run)
	add(s, "read_file", "Read a file in a cell", readOnly, "Read a file of a cell, or a part of it.", s.readFile)
	add(s, "write_file", "Write a file in a cell", changes, "Write a file in a cell.", s.writeFile)
	add(s, "list_files", "List files in a cell", readOnly, "List a directory of a cell.", s.listFiles)
	add(s, "fork", "Fork a template or a cell", makes, "Make new cells: from a warm template with its memory (and evaluate or run something in each), or from a cell with its files as of a checkpoint.", s.fork)
	add(s, "branch", "Branch a running cell", makes, "Copy a running cell with its interpreter: variables, modules and files of one instant. The cell itself continues.", s.branch)
	add(s, "checkpoint", "Checkpoint a cell", makes, "Save the present state of a cell as a checkpoint.", s.checkpoint)
	add(s, "restore", "Restore a checkpoint", changes, "Restore a cell to a checkpoint. Its processes end.", s.restore)
	add(s, "diff", "Show what changed", readOnly, "Show the changes of a run, or between two states of a cell.", s.diff)
	add(s, "policy_why", "Ask the policy", readOnly, "Explain the policy's decision on a network request or a program: the rule, and what would allow it.", s.why)
	add(s, "receipt", "Show a receipt", readOnly, "Show the signed receipt of a run: what ran, how it was isolated, what it changed, and what was not enforced.", s.receipt)
	add(s, "read", "Read a resource", readOnly, "Read a part of a resource (pando://…), such as the rest of a long output.", s.read)
	add(s, "kill", "Remove a cell", changes, "End the processes of a cell and remove it with its files and checkpoints; with keep, only end the processes.", s.kill)
}
