package credential

import (
	"errors"
	"io"

	"filippo.io/age"
)

// Recipient is the age recipient of the store's key, for what others encrypt to it.
func (s *Store) Recipient() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, err := s.identity(true)
	if err != nil {
		return "", err
	}
	return key.Recipient().String(), nil
}

// Decrypt reads what was encrypted to Recipient. The reader fails where that was damaged, or is incomplete.
func (s *Store) Decrypt(from io.Reader) (io.Reader, error) {
	s.mu.Lock()
	key, err := s.identity(false)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r, err := age.Decrypt(from, key)
	if err != nil {
		return nil, corrupt(keyName, errors.New("the file was not encrypted for it, or was damaged"))
	}
	return r, nil
}
