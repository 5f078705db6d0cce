package idbank

import (
	"context"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a Witness on the agent's disk: one small file, replaced whole.
type File struct{ Path string }

type fileForm struct {
	Mark
	CRC uint32 `json:"crc"` // of the mark
}

func sum(m Mark) (uint32, error) {
	b, err := json.Marshal(m)
	return crc32.ChecksumIEEE(b), err
}

// Recall reads the file. One that is missing or damaged is nothing remembered,
// which the bank takes as the worst; one that can't be read now is an error.
func (f File) Recall(context.Context) (Mark, bool, error) {
	b, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, false, nil
	}
	if err != nil {
		return Mark{}, false, err
	}
	var form fileForm
	if json.Unmarshal(b, &form) != nil {
		return Mark{}, false, nil
	}
	crc, err := sum(form.Mark)
	if err != nil || crc != form.CRC {
		return Mark{}, false, err
	}
	return form.Mark, true, nil
}

// Attest writes beside the file, syncs, renames, and syncs the folder.
func (f File) Attest(_ context.Context, m Mark) error {
	crc, err := sum(m)
	if err != nil {
		return err
	}
	b, err := json.Marshal(fileForm{m, crc})
	if err != nil {
		return err
	}
	dir := filepath.Dir(f.Path)
	tmp, err := os.CreateTemp(dir, filepath.Base(f.Path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), f.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
