package e2b

import (
	"io"
	"mime"
	"mime/multipart"
)

// parts reads a form part by part.
type parts interface {
	NextPart() (*multipart.Part, error)
}

func newParts(in io.Reader, boundary string) parts { return multipart.NewReader(in, boundary) }

// rawName is the file name of a part as it was sent. (Part.FileName leaves out its
// directories.)
func rawName(disposition string) string {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return ""
	}
	return params["filename"]
}
