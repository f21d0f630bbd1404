"""What a pod's containers find in their file systems."""

import base64
import os
import pathlib
import shutil
import time


class Volumes:
    """The volumes of one pod, below `folder`. `objects` finds ConfigMaps and Secrets; `claims` has
    a folder for each volume that outlives pods; `drivers` make the files of CSI volumes;
    `machine` has the paths of the host."""

    def __init__(self, folder, spec, objects, claims, owner, drivers, machine):
        self._drivers, self._machine = drivers, machine
        self._folder, self._objects, self._owner = folder, objects, owner
        self._group = (spec.get("securityContext") or {}).get("fsGroup", 0)
        self._places = {}  # name: path
        self._swapped = {}  # name: (kind, name of the object, its spec, what was written)
        for volume in spec.get("volumes") or []:
            self._places[volume["name"]] = self._make(volume, claims)

    def mounts(self, container):
        found = []
        for mount in container.get("volumeMounts") or []:
            source = self._places[mount["name"]] / mount.get("subPath", "")
            read_only = mount.get("readOnly", False) or mount["name"] in self._swapped
            found.append(
                {"source": str(source), "path": mount["mountPath"], "read_only": read_only}
            )
        return found

    def refresh(self):
        """Writes ConfigMaps and Secrets that have changed, as a kubelet does within a minute."""
        for name, (kind, source, volume, written) in self._swapped.items():
            files = self._files(kind, source, volume)
            if files is not None and files != written:
                self._swapped[name] = (kind, source, volume, files)
                self._swap(self._places[name], files, volume)

    def _make(self, volume, claims):
        name = volume["name"]
        place = self._folder / name
        if "persistentVolumeClaim" in volume:
            return claims.folder(volume["persistentVolumeClaim"]["claimName"], self._group)
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        place.mkdir(parents=True)
        if "emptyDir" in volume:
            os.chown(place, -1, self._group)
            place.chmod(0o2777)
            return place
        (kind,) = set(volume) - {"name"}
        if kind == "csi":
            files = self._drivers[volume["csi"]["driver"]](
                volume["csi"].get("volumeAttributes") or {}, self._owner
            )
            self._swap(place, files, {"defaultMode": 0o440})
            return place
        names = {"configMap": ("ConfigMap", "name"), "secret": ("Secret", "secretName")}
        if kind not in names:
            raise NotImplementedError(f"volume {name}: {kind}")
        kind_of_object, field = names[kind]
        source = volume[kind][field]
        files = self._files(kind_of_object, source, volume[kind])
        if files is None:
            raise LookupError(f'{kind_of_object} "{source}" not found')
        self._swapped[name] = (kind_of_object, source, volume[kind], files)
        self._swap(place, files, volume[kind])
        return place

    def _host_path(self, volume):
        """A folder of the machine. A kubelet gives it to root, whatever fsGroup says."""
        place = self._machine / volume["path"].lstrip("/")
        if volume.get("type") == "DirectoryOrCreate" and not place.exists():
            place.mkdir(parents=True)
            place.chmod(0o755)
        if not place.is_dir():
            raise LookupError(f"hostPath {volume['path']}: expected a folder")
        return place

    def _files(self, kind, name, volume):
        found = self._objects.find(kind, name, self._owner)
        if found is None:
            return {} if volume.get("optional") else None
        data = dict(found.get("data") or {})
        if kind == "Secret":
            data = {name: base64.b64decode(text).decode() for name, text in data.items()}
            data.update(found.get("stringData") or {})
        if "items" not in volume:
            return data
        return {item["path"]: data[item["key"]] for item in volume["items"]}

    def _swap(self, place, files, volume):
        """New files in a new folder, and a link that is moved there: nobody sees a half."""
        folder = place / f"..{time.time_ns()}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            os.chown(folder / name, 0, self._group)
            (folder / name).chmod(volume.get("defaultMode", 0o644))
        link = place / "..new"
        link.symlink_to(folder.name)
        before = os.readlink(place / "..data") if (place / "..data").is_symlink() else None
        link.rename(place / "..data")
        for name in files:
            if not (place / name).is_symlink():
                (place / name).symlink_to(pathlib.Path("..data", name))
        if before:
            shutil.rmtree(place / before)


class Claims:
    """Volumes that outlive pods: folders. A claim that nobody made is made by its first user."""

    def __init__(self, folder):
        self._folder = folder
        self.lost = frozenset()  # Those that no machine can mount now.

    def folder(self, name, group=0):
        if name in self.lost:
            raise LookupError(f'volume of "{name}": cannot be mounted')
        place = self._folder / name
        if not place.exists():
            place.mkdir(parents=True)
        os.chown(place, -1, group)
        place.chmod(0o2775)
        return place

    def remove(self, name):
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def names(self):
        return sorted(p.name for p in self._folder.iterdir()) if self._folder.exists() else []
