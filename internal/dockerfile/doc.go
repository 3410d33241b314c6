// Package dockerfile makes an image from a Dockerfile, without Docker.
//
//	file.go    text ─▶ stages and instructions, checked before anything starts
//	stage.go   instructions, in their order ─▶ what to do, with variables expanded
//	copy.go    files of the context, or of another stage ─▶ a layer
//	build.go   base image ─▶ layer by layer ─▶ image, each step kept by what it was made from
//
// The text is parsed by BuildKit's own module (github.com/moby/buildkit/frontend/dockerfile), so
// that what it means is what it means there. What pando can't do is an error that names its
// line, and what is not used in a cell (USER) is a note.
//
// It promises:
//
//   - A RUN executes in a cell, by Config.Run: isolated, under the policy of the run that wants
//     the image, with a receipt of its own. Nothing of a Dockerfile is executed outside.
//   - COPY reads what the context's import has, and nothing else of the host: what import leaves
//     out (secrets, what lies outside) can't come into an image.
//   - A step has the identity of what it was made from: the image before it, the instruction as
//     expanded, and the contents it copies. One that is kept is not made again.
//
// It leaves to the caller where images are kept, and which callers may build.
package dockerfile
