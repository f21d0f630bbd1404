{{/* The worker's container, in a pod of its own or in the node's. No two ports of a pod have the same name. */}}
{{- define "cairn.workerContainer" -}}
{{- $device := .Values.worker.device -}}
- name: worker
  image: {{ include "cairn.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [cairn-worker, --config, /etc/cairn-worker/worker.yaml]
  env:
    # If there are several cache nodes, the one on this machine is preferred.
    - name: CAIRN_CACHE_HOST
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  ports:
    - {name: worker-grpc, containerPort: 7500}
    - {name: worker-admin, containerPort: 7501}
  {{- include "cairn.probes" "worker-admin" | nindent 2 }}
  resources:
    {{- $memory := printf "%dMi" (add .Values.worker.memoryMiB (include "cairn.driverMiB" $device)) }}
    requests: {cpu: {{ .Values.worker.threads | quote }}, memory: {{ $memory }}}
    limits:
      memory: {{ $memory }}
      {{- include "cairn.deviceLimit" $device | nindent 6 }}
    {{- include "cairn.deviceClaim" $device | nindent 4 }}
  securityContext: {{- include "cairn.containerSecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: worker-config, mountPath: /etc/cairn-worker, readOnly: true}
    - {name: model, mountPath: /models, readOnly: true}
    {{- if .Values.worker.besideNode }}
    - {name: local, mountPath: /run/cairn, readOnly: true}
    {{- end }}
    {{- if .Values.tls.existingSecret }}
    - {name: tls, mountPath: /etc/cairn-tls, readOnly: true}
    {{- end }}
{{- end -}}

{{/* Not empty: each node's pod has a worker. */}}
{{- define "cairn.hasWorkerBeside" -}}
{{- if and .Values.worker.enabled .Values.worker.besideNode }}beside{{ end -}}
{{- end -}}

{{/* Whose pods run workers. */}}
{{- define "cairn.workerPods" -}}
{{ ternary "cache" "worker" .Values.worker.besideNode }}
{{- end -}}

{{/* What the schema cannot say of the worker's values. */}}
{{- define "cairn.checkWorker" -}}
{{- $node := .Values.cache.device -}}
{{- $worker := .Values.worker.device -}}
{{- if and .Values.worker.enabled $worker.enabled (ne .Values.worker.arithmetic "fast") -}}
{{- fail (printf "worker.arithmetic: got %s, expected fast, because worker.device.enabled=true" .Values.worker.arithmetic) -}}
{{- end -}}
{{- if and .Values.worker.enabled .Values.worker.besideNode -}}
{{- if .Values.worker.cacheAddress -}}
{{- fail (printf "worker.cacheAddress: got %s, expected nothing, because worker.besideNode=true: the worker uses the node of its pod" .Values.worker.cacheAddress) -}}
{{- end -}}
{{- if and $node.enabled $worker.enabled -}}
{{- if not $node.claimTemplate -}}
{{- fail "cache.device.claimTemplate: name one, because worker.besideNode=true: nvidia.com/gpu gives each container GPUs of its own, and a claim is shared" -}}
{{- end -}}
{{- if ne $node.claimTemplate $worker.claimTemplate -}}
{{- fail (printf "worker.device.claimTemplate: got %s, expected that of cache.device, %s, because worker.besideNode=true: node and worker share one claim" (quote $worker.claimTemplate) (quote $node.claimTemplate)) -}}
{{- end -}}
{{- if ne $node.runtimeClassName $worker.runtimeClassName -}}
{{- fail (printf "worker.device.runtimeClassName: got %s, expected that of cache.device, %s, because worker.besideNode=true: a pod has one" (quote $worker.runtimeClassName) (quote $node.runtimeClassName)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
